/** Schemas in the form that clients see. */
import type { JsonObject } from '@boxcar/kernel';
import { z } from 'zod';

/** Without the dialect, as in every list of tools. */
const withoutDialect = ({ $schema: _dialect, ...schema }: Record<string, unknown>): JsonObject =>
  schema as JsonObject;

export const inputOf = (schema: z.ZodType): JsonObject =>
  withoutDialect(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }));

export const outputOf = (schema: z.ZodType): JsonObject =>
  withoutDialect(z.toJSONSchema(schema, { io: 'output', unrepresentable: 'any' }));
