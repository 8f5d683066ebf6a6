export { authenticateKey, type KeyPrincipal } from './authenticate-key.js';
export { digestOf as digestKey, type KeyText, makeKeyText } from './key-text.js';
export {
  type CreatedKey,
  type CreateKeyOptions,
  createKey,
  type Key,
  type KeyList,
  type ListKeysOptions,
  listKeys,
  type RotateKeyOptions,
  revokeKey,
  rotateKey,
} from './keys.js';
