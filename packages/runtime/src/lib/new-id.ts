import { randomFillSync } from 'node:crypto';
import { type NewId, parseId } from '@boxcar/kernel';
import { V7Generator } from 'uuidv7';

/** Random numbers are generated in bulk: a call for each id would take longer than the rest of the work. */
const random = new Uint32Array(1_024);
let used = random.length;

const generator = new V7Generator({
  nextUint32: () => {
    if (used === random.length) {
      randomFillSync(random);
      used = 0;
    }
    const next = random[used] ?? 0;
    used += 1;
    return next;
  },
});

/** A new id. Ids made later sort later. */
export const newId: NewId = <K extends string>() => parseId<K>(generator.generate().toString(), 'id');
