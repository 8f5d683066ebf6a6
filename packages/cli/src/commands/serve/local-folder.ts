import { join } from 'node:path';
import { dataHome } from '@boxcar/embedded/data-home';

/** Where servers of this account leave their local keys for its commands. */
export const localFolder = (): string => join(dataHome(), 'http');
