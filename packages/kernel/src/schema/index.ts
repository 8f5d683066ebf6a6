export { briefSchema, FOR_PROGRAMS } from './brief-schema.js';
export { checkBySchema, findSchemaFault, findSchemasFault } from './user-schema.js';
