import type { Doorbell } from '@boxcar/kernel';

/** A doorbell whose queue cannot be reached: it loses all rings, and workers take turns from the rows. */
export const deafDoorbell = (): Doorbell => ({
  ring: async () => undefined,
  findLost: async () => undefined,
  raise: async () => undefined,
  knock: async () => [],
  listen: async () => ({
    pause: () => undefined,
    resume: () => undefined,
    close: async () => undefined,
  }),
  close: async () => undefined,
});
