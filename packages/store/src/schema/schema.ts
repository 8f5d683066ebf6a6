/**
 * The tables in the form of drizzle, for the statements of its query builder (`query/`) and for the types of rows (`row.ts`). The
 * migrations create the schema, and this file follows them. A test compares names, types, nullability, defaults and keys with the
 * catalog in both directions. Checks, indexes and triggers are only in the migrations.
 */
export * from './content-tables.js';
export * from './handoff-tables.js';
export * from './key-tables.js';
export * from './session-tables.js';
export * from './turn-tables.js';
export * from './work-tables.js';
