/** Arguments of tools whose work begins here. */
import { type JsonObject, type JsonValue, safeParse, toBadRequest } from '@boxcar/kernel';
import type { z } from 'zod';

/** @throws KernelError `bad_request` with all findings. */
export function parseArguments<T>(schema: z.ZodType<T>, args: JsonObject): T {
  const parsed = safeParse(schema, args);
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return parsed.data;
}

/** What the runtime answers is JSON by its types, but for dates. */
export const toJson = (value: unknown): JsonValue => JSON.parse(JSON.stringify(value ?? null)) as JsonValue;
