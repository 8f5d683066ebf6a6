/**
 * The tables as drizzle sees them: for the statements of its query builder (`query/`), and for the types of rows (`row.ts`). The
 * migrations make the schema; this file follows them, and a test compares names, types, nullability, defaults and keys with the
 * catalogue in both directions. Checks, indexes and triggers are in the migrations alone.
 */
export * from './content-tables.js';
export * from './handoff-tables.js';
export * from './key-tables.js';
export * from './session-tables.js';
export * from './turn-tables.js';
export * from './work-tables.js';
