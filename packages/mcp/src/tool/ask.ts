/** Parses arguments and converts answers of tools. */
import { type JsonObject, type JsonValue, parseInput } from '@boxcar/kernel';
import type { z } from 'zod';

/** @throws KernelError `bad_request` with all findings. */
export const parseArguments = <T>(schema: z.ZodType<T>, args: JsonObject): T =>
  parseInput(schema, args, 'arguments');

/** Answers of the runtime are JSON except for dates. */
export const toJson = (value: unknown): JsonValue => JSON.parse(JSON.stringify(value ?? null)) as JsonValue;
