export { freePort } from './free-port.js';
export { overTcp } from './over-tcp.js';
export {
  defaultDataDir,
  deleteEmbeddedData,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from './server.js';
