export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}
export function formatCounts(counts: Counts): string;
export function readCounts(output: string, exitCode: number | null): Counts;
export function addCounts(runs: readonly Counts[]): Counts;
