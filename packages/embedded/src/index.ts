export { freePort } from './free-port.js';
export {
  defaultDataDir,
  deleteEmbeddedData,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from './server.js';
export { overTcp } from './server-client.js';
