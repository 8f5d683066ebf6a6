/** `@boxcar/kernel/settings`: what the settings of a program are checked by, without the rules. The same names are in `@boxcar/kernel`. */
export { isPlainName, PLAIN_NAME } from './base/names.js';
export { readRedisUrl, withClusterPassword } from './base/redis-url.js';
export { type PriceTable, pricesSchema } from './model/prices.js';
