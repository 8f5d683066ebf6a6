import { isPlainName, KernelError, PLAIN_NAME, parseJsonValue } from '@boxcar/kernel';

export const checkText = (value: string | undefined, field: string, maxLength: number): void => {
  if (value === undefined) return;
  parseJsonValue(value, field);
  if (!isPlainName(value)) {
    throw new KernelError('bad_request', {
      message: `${field}: ${PLAIN_NAME}.`,
      details: { field },
    });
  }
  if (value.trim() === '' || value.length > maxLength) {
    throw new KernelError('bad_request', {
      message: `${field}: must have 1 to ${maxLength} characters.`,
      details: { field },
    });
  }
};
