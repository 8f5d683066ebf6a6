import { type NewId, parseId } from '@boxcar/kernel';
import { uuidv7 } from 'uuidv7';

/** A new id. Ids made later sort later. */
export const newId: NewId = <K extends string>() => parseId<K>(uuidv7(), 'id');
