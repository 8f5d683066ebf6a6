/**
 * Validates structured results against the schema of their tool, in limited time. Parts of a schema that cannot be enforced are ignored:
 * a wrong schema of a server must not cause the loss of its results.
 */
import { checkBySchema, isJsonObject, type JsonValue, loosenSchema } from '@boxcar/kernel';
import type { jsonSchemaValidator } from '@modelcontextprotocol/client';

export const outputValidator: jsonSchemaValidator = {
  getValidator: <T>(schema: unknown) => {
    const enforced = isJsonObject(schema) ? loosenSchema(schema) : undefined;
    return (input: unknown) => {
      const findings =
        enforced === undefined ? [] : checkBySchema(enforced, input as JsonValue, 'structuredContent');
      return findings.length === 0
        ? { valid: true, data: input as T, errorMessage: undefined }
        : { valid: false, data: undefined, errorMessage: findings.join('; ') };
    };
  },
};
