export {
  findKeyRow,
  findUsableKey,
  hasUsableKey,
  insertKey,
  type KeyRow,
  listKeyRows,
  noteKeyUse,
  revokeKeyRow,
  rotateKeyRow,
  type UsableKey,
  withLocalKey,
} from './keys.js';
