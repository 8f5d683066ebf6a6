/** The folder of Boxcar's data on this machine, for programs that need no server. */
export { dataHome } from './config.js';
