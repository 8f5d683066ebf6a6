/** Where Boxcar keeps what it keeps on this machine, for programs that need no server. */
export { dataHome } from './config.js';
