import type { DelegateAsync, ForkJoin } from '@boxcar/kernel';

export type GivenTask = ForkJoin['tasks'][number] | DelegateAsync;

/** The profiles in a target. */
export const targetProfiles = ({ target_strategy, target_ref }: GivenTask): readonly string[] => {
  if (typeof target_ref !== 'string')
    return target_ref.profile_name === undefined ? [] : [target_ref.profile_name];
  return target_strategy === 'new' ? [target_ref] : [];
};
