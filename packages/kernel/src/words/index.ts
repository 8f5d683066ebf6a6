/**
 * `@boxcar/kernel/words`: findings of the rules as sentences for people, with the commands that help. For command lines
 * and reports; running a turn does not load it.
 */
export { type DescribedLink, type DescribedWait, describeWait } from './wait-words.js';
