/**
 * `@boxcar/kernel/words`: findings of the rules in sentences for people, with the commands that help. For command lines and
 * reports; nothing on the way of a turn loads it.
 */
export { type DescribedLink, type DescribedWait, describeWait } from './wait-words.js';
