/** `@boxcar/adapters/wire`: requests to addresses that others name. Light: no SDK is loaded. */
export { ADDRESS_REFUSED, createFetch } from './http-fetch.js';
export { AddressRules } from './private-address.js';
