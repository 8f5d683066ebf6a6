export { briefSchema, FOR_PROGRAMS } from './brief-schema.js';
export { findSchemasFault } from './schema-parts.js';
export { checkBySchema, findSchemaFault } from './user-schema.js';
