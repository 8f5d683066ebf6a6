/** Exports for the bench that are not in the package's public surface or its contract. */
export { toRows } from './pack/index.js';
