/** `@boxcar/adapters/wire`: requests to addresses that third parties name. Loads no SDK. */
export { ADDRESS_REFUSED, createFetch } from './http-fetch.js';
export { AddressRules } from './private-address.js';
