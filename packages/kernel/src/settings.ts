/**
 * `@boxcar/kernel/settings`: the checks for the settings of a program, without the rules. `@boxcar/kernel` exports the
 * same names.
 */
export { isPlainName, PLAIN_NAME } from './base/names.js';
export { readRedisUrl, withClusterPassword } from './base/redis-url.js';
export { type PriceTable, pricesSchema } from './model/prices.js';
