export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}
export function formatCounts(counts: Counts): string;
export function readCounts(output: string, exitCode: number | null): Counts;
export function addCounts(runs: readonly Counts[]): Counts;
interface FileResult {
  readonly name: string;
  readonly status: string;
  readonly message?: string;
  readonly assertionResults: readonly {
    readonly status: string;
    readonly fullName?: string;
    readonly failureMessages?: readonly string[];
  }[];
}
export function formatFailures(files: readonly FileResult[], root: string): string[];
export function findFailures(output: string): string[];
