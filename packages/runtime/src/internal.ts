/** What the bench needs beyond the package's surface. No part of the public contract. */
export { toRows } from './pack/index.js';
