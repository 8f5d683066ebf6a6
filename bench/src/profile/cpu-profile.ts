import { fileURLToPath } from 'node:url';

/** The part of a `.cpuprofile` that is read. */
interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
  }[];
  readonly samples?: readonly number[];
  readonly timeDeltas?: readonly number[];
}

export interface SelfTime {
  readonly name: string;
  readonly microseconds: number;
}

export interface SelfTimes {
  readonly busy: number;
  readonly functions: readonly SelfTime[];
  readonly packages: readonly SelfTime[];
}

/** The CPU time of a process by function and by package, in descending order, without idle time. */
export function readSelfTimes(text: string): SelfTimes {
  const profile = JSON.parse(text) as CpuProfile;
  const nodes = new Map(profile.nodes.map((node) => [node.id, node.callFrame]));
  const functions = new Map<string, number>();
  const packages = new Map<string, number>();
  let busy = 0;
  profile.samples?.forEach((id, index) => {
    const frame = nodes.get(id);
    const microseconds = profile.timeDeltas?.[index] ?? 0;
    if (frame === undefined || frame.functionName === '(idle)') return;
    busy += microseconds;
    const file = nameFile(frame.url);
    const place = file === '' ? '' : ` ${file}:${frame.lineNumber + 1}`;
    add(functions, `${frame.functionName || '(anonymous)'}${place}`, microseconds);
    add(packages, namePackage(frame.functionName, file), microseconds);
  });
  return { busy, functions: rank(functions), packages: rank(packages) };
}

function add(sums: Map<string, number>, name: string, microseconds: number): void {
  sums.set(name, (sums.get(name) ?? 0) + microseconds);
}

const rank = (sums: ReadonlyMap<string, number>): SelfTime[] =>
  [...sums]
    .map(([name, microseconds]) => ({ name, microseconds }))
    .sort((a, b) => b.microseconds - a.microseconds);

/** Paths from the last `node_modules` or the workspace's own folders on. */
function nameFile(url: string): string {
  if (!url.startsWith('file:')) return url;
  const path = fileURLToPath(url);
  const [, module] = /.*\/node_modules\/(.+)$/.exec(path) ?? [];
  const [, own] = /\/((?:packages|bench)\/[^/]+\/.*)$/.exec(path) ?? [];
  return module ?? own ?? path;
}

function namePackage(functionName: string, file: string): string {
  if (file === '') return functionName.startsWith('(') ? functionName : '(native)';
  if (file.startsWith('node:')) return 'node';
  return file
    .split('/')
    .slice(0, file.startsWith('@') || file.startsWith('packages/') ? 2 : 1)
    .join('/');
}
