import { join } from 'node:path';
import { dataHome } from '@boxcar/embedded/data-home';

/** The folder in which servers of this account store their local keys for its commands. */
export const localFolder = (): string => join(dataHome(), 'http');
