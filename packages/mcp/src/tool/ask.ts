/** Arguments and answers of tools whose work begins here. */
import { type JsonObject, type JsonValue, parseInput } from '@boxcar/kernel';
import type { z } from 'zod';

/** @throws KernelError `bad_request` with all findings. */
export const parseArguments = <T>(schema: z.ZodType<T>, args: JsonObject): T =>
  parseInput(schema, args, 'arguments');

/** What the runtime answers is JSON by its types, but for dates. */
export const toJson = (value: unknown): JsonValue => JSON.parse(JSON.stringify(value ?? null)) as JsonValue;
