export type { Outer, Row } from './row.js';
export * as tables from './schema.js';
