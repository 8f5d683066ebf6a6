// Checks the rooms of the packages against rooms.json: which folder of a package may import which other folders, and that imports between
// folders go through a folder's door. Also finds import cycles, including imports of types. A room is a folder in `src`; its door is
// `index.ts`, or else the one file that other rooms import.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseSync, Visitor } from 'oxc-parser';
import { readScriptArguments } from './script-arguments.mjs';

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** Published files: no tests, and no files that only tests use. */
const SHIPPED = /^(?!(.*\/)?(testing|fixtures|faults|scenarios)\/).*(?<!\.test)\.ts$/;

/**
 * The imports of a file: files of its package as paths from `src`, packages by their names.
 *
 * @param {string} file
 * @param {string} text
 */
export function importsOf(file, text) {
  const { module, program } = parseSync(file, text);
  /** `import('…').Type` and `typeof import('…')`. */
  const types = [];
  new Visitor({ TSImportType: ({ source }) => types.push(source.value) }).visit(program);
  const texts = [
    ...types,
    ...module.staticImports.map(({ moduleRequest }) => moduleRequest.value),
    ...module.staticExports.flatMap(({ entries }) => entries.map((entry) => entry.moduleRequest?.value)),
    ...module.dynamicImports.map(({ moduleRequest: { start, end } }) => text.slice(start + 1, end - 1)),
  ];
  return new Set(
    texts
      .filter((text) => text !== undefined)
      .map((text) =>
        text.startsWith('.') ? posix.join(posix.dirname(file), text).replace(/\.js$/, '.ts') : text,
      ),
  );
}

/** @param {string} file */
const roomOf = (file) => (file.includes('/') ? file.slice(0, file.indexOf('/')) : '');

/**
 * Groups of files that import one another, each as large as possible.
 *
 * @param {ReadonlyMap<string, ReadonlySet<string>>} graph
 */
export function findCircles(graph) {
  const circles = [];
  const order = new Map();
  const low = new Map();
  const stack = [];
  const visit = (file) => {
    order.set(file, order.size);
    low.set(file, order.get(file));
    stack.push(file);
    for (const next of graph.get(file) ?? []) {
      if (!order.has(next)) visit(next);
      if (stack.includes(next)) low.set(file, Math.min(low.get(file), low.get(next)));
    }
    if (low.get(file) !== order.get(file)) return;
    const circle = stack.splice(stack.indexOf(file)).sort();
    if (circle.length > 1) circles.push(circle);
  };
  for (const file of graph.keys()) if (!order.has(file)) visit(file);
  return circles;
}

/**
 * @param {ReadonlyMap<string, string>} texts - The published files of a package, by their path from `src`.
 * @param {object} rules
 * @param {Record<string, string[]>} [rules.rooms] - The rooms that each room may import; the lowest come first.
 * @param {Record<string, string[]>} [rules.entries] - Entries of other packages that only these rooms may import; '' is `src` itself.
 * @param {string[]} [rules.light] - Files that must load as little as possible, and so may import single files of other rooms.
 * @param {string[][]} [rules.circles] - Accepted import cycles.
 * @param {Record<string, string[]>} [rules.apart] - Rooms that a file in `src` itself may not import: they have a separate entry.
 * @returns {string[]} The errors, one line each.
 */
export function checkPackage(texts, { rooms, entries = {}, light = [], circles = [], apart = {} }) {
  const found = [];
  const imported = [...texts].map(([file, text]) => [file, [...importsOf(file, text)]]);
  const graph = new Map(
    imported.map(([file, imports]) => [file, new Set(imports.filter((to) => texts.has(to)))]),
  );
  for (const [file, imports] of imported)
    for (const to of imports) {
      if (entries[to]?.includes(roomOf(file)) === false) found.push(`${file} may not import ${to}`);
      if (to.endsWith('.ts') && !texts.has(to)) found.push(`${file} imports ${to}, which does not ship`);
    }
  const allowed = circles.map((circle) => [...circle].sort().join(' '));
  for (const circle of findCircles(graph))
    if (!allowed.includes(circle.join(' '))) found.push(`import circle: ${circle.join(' ')}`);
  if (rooms === undefined) return found;

  const entered = new Map();
  const arrows = new Map(Object.keys(rooms).map((room) => [room, new Set()]));
  for (const file of graph.keys())
    if (roomOf(file) !== '' && !arrows.has(roomOf(file)))
      found.push(`${file}: its room is not in rooms.json`);
  for (const [file, imports] of graph) {
    const from = roomOf(file);
    for (const to of imports) {
      const room = roomOf(to);
      if (room === '' && from !== '') found.push(`${file} imports ${to}: a room imports other rooms only`);
      if (room === '' || room === from) continue;
      if (apart[file]?.includes(room))
        found.push(`${file} may not import ${room}, which has an entry of its own`);
      if (!light.includes(file)) entered.set(room, (entered.get(room) ?? new Set()).add(to));
      if (from === '') continue;
      arrows.get(from)?.add(room);
      if (rooms[from] !== undefined && !rooms[from].includes(room))
        found.push(`${file} imports ${to}: ${from} may not import ${room}`);
    }
  }
  for (const [room, files] of entered) {
    const door = graph.has(`${room}/index.ts`) ? `${room}/index.ts` : [...files].sort()[0];
    const others = [...files].filter((file) => file !== door);
    if (others.length > 0)
      found.push(`${room}: imports go around its door ${door} to ${others.sort().join(', ')}`);
  }
  for (const [room, listed] of Object.entries(rooms))
    for (const other of listed)
      if (!arrows.get(room)?.has(other)) found.push(`rooms.json: ${room} does not import ${other}`);
  return found;
}

/** @param {string} name */
function readPackage(name) {
  const source = join(root, name, 'src');
  const files = readdirSync(source, { recursive: true, encoding: 'utf8' });
  return new Map(
    files
      .filter((file) => SHIPPED.test(file))
      .map((file) => [file, readFileSync(join(source, file), 'utf8')]),
  );
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  readScriptArguments(`Usage: node scripts/rooms.mjs

Checks the imports between the folders of each package against scripts/rooms.json, and finds import circles.`);
  const rules = JSON.parse(readFileSync(join(root, 'scripts/rooms.json'), 'utf8'));
  const missing = readdirSync(join(root, 'packages'))
    .map((name) => `packages/${name}`)
    .filter((name) => existsSync(join(root, name, 'package.json')) && rules[name] === undefined)
    .map((name) => `${name}: the package is not in rooms.json`);
  const found = Object.entries(rules).flatMap(([name, own]) =>
    checkPackage(readPackage(name), own).map((line) => `${name}: ${line}`),
  );
  found.push(...missing);
  for (const line of found) console.error(line);
  if (found.length > 0)
    console.error(`
Import another room by its door (index.ts), and only rooms that scripts/rooms.json lists for yours. An arrow that is meant
goes into that list; one that would close a circle needs the shared part in a lower room.`);
  process.exitCode = found.length === 0 ? 0 : 1;
}
