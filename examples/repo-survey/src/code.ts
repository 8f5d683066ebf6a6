/**
 * Finds the exports, the named functions and the TODO comments of a TypeScript or JavaScript file.
 *
 * An export is a name that the module exports, counted once, however often it is declared (overloads, a type and a value). Each `export *
 * from` and `export =` counts as one. A function has a body and a name of its own: it is declared, a method, or assigned to a variable, a
 * property or a field. Callbacks have no name.
 */
import { type Expression, type ParseResult, type PropertyKey, parse, type Span, Visitor } from 'oxc-parser';

export interface NamedFunction {
  readonly name: string;
  /** From 1. */
  readonly line: number;
  readonly lines: number;
}

export interface Code {
  readonly exports: number;
  readonly functions: readonly NamedFunction[];
}

/** Parses a file; undefined when its syntax cannot be recovered. */
export async function parseCode(path: string, text: string): Promise<ParseResult | undefined> {
  // Plain .js files often contain JSX, and the JSX parser accepts other files as well.
  const lang = /\.[cm]?jsx?$/i.test(path) ? 'jsx' : undefined;
  const parsed = await parse(path, text, { preserveParens: false, ...(lang === undefined ? {} : { lang }) });
  return parsed.program.body.length === 0 && parsed.errors.length > 0 ? undefined : parsed;
}

export const measureCode = (parsed: ParseResult, text: string): Code => ({
  exports: countExports(parsed),
  functions: findFunctions(parsed, text),
});

function countExports({ module, program }: ParseResult): number {
  const names = new Set<string>();
  let others = program.body.filter((statement) => statement.type === 'TSExportAssignment').length;
  for (const { exportName } of module.staticExports.flatMap((statement) => statement.entries)) {
    if (`${exportName.kind}` === 'None') others += 1;
    else names.add(exportName.name ?? 'default');
  }
  return names.size + others;
}

/** The function in an expression, inside any type assertions. */
function functionIn(expression: Expression | null): Span | undefined {
  switch (expression?.type) {
    case 'ArrowFunctionExpression':
    case 'FunctionExpression':
      return expression;
    case 'TSAsExpression':
    case 'TSSatisfiesExpression':
      return functionIn(expression.expression);
    default:
      return undefined;
  }
}

function keyName(key: PropertyKey, isComputed: boolean): string | undefined {
  if (key.type === 'PrivateIdentifier') return `#${key.name}`;
  if (key.type === 'Literal') return typeof key.value === 'string' ? key.value : String(key.value);
  return key.type === 'Identifier' && !isComputed ? key.name : undefined;
}

function findFunctions({ program }: ParseResult, text: string): readonly NamedFunction[] {
  const lineOf = createLineIndex(text);
  const found: NamedFunction[] = [];
  const classes: (string | undefined)[] = [];
  const add = (name: string | undefined, span: Span | undefined): void => {
    if (name === undefined || span === undefined) return;
    const line = lineOf(span.start);
    found.push({ name, line, lines: lineOf(span.end) - line + 1 });
  };
  const inClass = (name: string | undefined): string | undefined => {
    const owner = classes.at(-1);
    return name === undefined || owner === undefined ? name : `${owner}.${name}`;
  };
  const enter = (node: { readonly id: { readonly name: string } | null }): void => {
    classes.push(node.id?.name);
  };
  const leave = (): void => {
    classes.pop();
  };
  new Visitor({
    ClassDeclaration: enter,
    'ClassDeclaration:exit': leave,
    ClassExpression: enter,
    'ClassExpression:exit': leave,
    FunctionDeclaration: (node) => add(node.id?.name ?? 'default', node.body === null ? undefined : node),
    VariableDeclarator: (node) =>
      add(node.id.type === 'Identifier' ? node.id.name : undefined, functionIn(node.init)),
    MethodDefinition: (node) =>
      add(inClass(keyName(node.key, node.computed)), node.value.body === null ? undefined : node),
    PropertyDefinition: (node) => add(inClass(keyName(node.key, node.computed)), functionIn(node.value)),
    Property: (node) => {
      if (node.value.type === 'AssignmentPattern') return;
      const isMethod = node.method || node.kind !== 'init';
      const name = keyName(node.key, node.computed);
      if (isMethod) add(name, node);
      else if (node.value.type === 'ArrowFunctionExpression' || node.value.type === 'FunctionExpression')
        add(name, node.value);
    },
    AssignmentExpression: ({ left, right }) => {
      const name =
        left.type === 'Identifier'
          ? left.name
          : left.type === 'MemberExpression'
            ? keyName(left.property, left.computed)
            : undefined;
      add(name, functionIn(right));
    },
    ExportDefaultDeclaration: ({ declaration }) => {
      if (declaration.type === 'ArrowFunctionExpression' || declaration.type === 'FunctionExpression')
        add('default', declaration);
    },
  }).visit(program);
  return found;
}

/** Returns a function that gives the line of an offset, from 1. */
export function createLineIndex(text: string): (offset: number) => number {
  const starts = [0];
  for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) starts.push(at + 1);
  return (offset) => {
    let low = 0;
    let high = starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((starts[middle] ?? 0) <= offset) low = middle;
      else high = middle;
    }
    return low + 1;
  };
}
