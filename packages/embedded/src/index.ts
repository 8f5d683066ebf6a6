export {
  defaultDataDir,
  deleteEmbeddedData,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from './server.js';
