export function checkPreviousBuild(root: string): {
  readonly failures: readonly string[];
  readonly unchecked: readonly string[];
};
