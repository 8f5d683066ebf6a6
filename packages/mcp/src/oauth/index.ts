export type { IssuerTimes } from './issuer.js';
export { metadataRoutes } from './metadata-routes.js';
export { type OAuthOptions, readOAuth } from './settings.js';
export { openTokenDoor } from './token-door.js';
