/** The wire schemas of handoffs and requests for approval, which are shipped with this package. */
import { readFileSync } from 'node:fs';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';

const ajv = new Ajv2020({ allErrors: true, strict: true, allowUnionTypes: true });
addFormats.default(ajv);

/** @returns A function that returns the errors of a value. */
const validator = (name: string) => {
  const validate = ajv.compile(
    JSON.parse(readFileSync(new URL(`../../schemas/${name}.schema.json`, import.meta.url), 'utf8')),
  );
  return (value: unknown) => (validate(value) ? [] : (validate.errors ?? []));
};

export const wireErrors = {
  request: validator('handoff_request'),
  response: validator('handoff_response'),
  ticket: validator('approval_ticket'),
} as const;
