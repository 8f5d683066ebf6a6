import { cutEcho, isJsonObject, type JsonValue, KernelError } from '../base/index.js';
import type { Field } from './card.js';

/** The most surplus names that are listed; the others are only counted. */
const MAX_SURPLUS = 10;

const typeOf = (value: JsonValue): string =>
  Array.isArray(value) ? 'array' : value === null ? 'null' : typeof value;

/**
 * Checks a submitted result against the fields that this turn was asked for. The result must be an object with these
 * names and no others; each value must have its type, and required values must be present. Without fields, any JSON is
 * a result.
 *
 * @throws KernelError `tool_arguments_invalid` listing every finding.
 */
export function checkResult(result: JsonValue, fields: readonly Field[] | undefined): void {
  if (fields === undefined) return;
  const findings: string[] = [];
  const known = cutEcho(fields.map((field) => field.name).join(', '));
  if (!isJsonObject(result)) {
    findings.push(`result must be an object with the fields ${known}`);
  } else {
    for (const field of fields) {
      const value = Object.hasOwn(result, field.name) ? result[field.name] : undefined;
      if (value === undefined || value === null) {
        if (field.required ?? true)
          findings.push(
            value === null
              ? `result.${field.name} is null, but it is required; give ${field.type === undefined ? 'a value' : `a value of type ${field.type}`}`
              : `result.${field.name} is missing`,
          );
      } else if (field.type !== undefined && typeOf(value) !== field.type) {
        findings.push(`result.${field.name} must be of type ${field.type}, not ${typeOf(value)}`);
      }
    }
    const names = new Set(fields.map((field) => field.name));
    const surplus = Object.keys(result).filter((key) => !names.has(key));
    for (const key of surplus.slice(0, MAX_SURPLUS))
      findings.push(`result.${cutEcho(key)} is not one of the fields ${known}`);
    if (surplus.length > MAX_SURPLUS)
      findings.push(`and ${surplus.length - MAX_SURPLUS} more that are not asked for`);
  }
  if (findings.length > 0)
    throw new KernelError('tool_arguments_invalid', {
      message: `${findings.join('; ')}.`,
      details: { findings },
    });
}
