export { briefSchema, FOR_PROGRAMS } from './brief-schema.js';
export { loosenSchema } from './loosen-schema.js';
export { findSchemasFault } from './schema-parts.js';
export { checkBySchema, findSchemaFault } from './user-schema.js';
