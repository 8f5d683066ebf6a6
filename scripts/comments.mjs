// The comments of a source file: what a reader reads beside the code.

/** Where a slash begins a regular expression and does not divide: after these, and at the beginning. */
const BEFORE_REGEXP =
  /(?:^|[(,=:[!&|?{};+\-*%<>~^]|\b(?:return|typeof|case|in|of|do|else|void|throw|await|yield))\s*$/;

/** From the slash on. */
function endOfRegexp(source, from) {
  let isClass = false;
  for (let at = from + 1; at < source.length; at += 1) {
    const sign = source[at];
    if (sign === '\\') at += 1;
    else if (sign === '\n') return from + 1;
    else if (sign === '[') isClass = true;
    else if (sign === ']') isClass = false;
    else if (sign === '/' && !isClass) return at + 1;
  }
  return source.length;
}

function endOfString(source, from) {
  for (let at = from + 1; at < source.length; at += 1) {
    if (source[at] === '\\') at += 1;
    else if (source[at] === source[from] || source[at] === '\n') return at + 1;
  }
  return source.length;
}

/**
 * The comments of JavaScript and TypeScript; everything else is replaced by nothing, but line breaks stay.
 *
 * @param {string} source
 */
function commentsOfScript(source) {
  let out = '';
  /** Open braces of each template that the place is in. */
  const templates = [];
  const keepBreaks = (from, to) => {
    out += source.slice(from, to).replace(/[^\n]/g, '');
  };
  let at = 0;
  const template = () => {
    for (at += 1; at < source.length; at += 1) {
      if (source[at] === '\n') out += '\n';
      if (source[at] === '\\') at += 1;
      else if (source[at] === '`') {
        at += 1;
        return;
      } else if (source.startsWith('${', at)) {
        templates.push(0);
        at += 2;
        return;
      }
    }
  };
  let codeFrom = 0;
  while (at < source.length) {
    const sign = source[at];
    if (source.startsWith('//', at)) {
      const end = source.indexOf('\n', at) === -1 ? source.length : source.indexOf('\n', at);
      out += ` ${source.slice(at + 2, end)}`;
      at = end;
      codeFrom = at;
    } else if (source.startsWith('/*', at)) {
      const end = source.indexOf('*/', at) === -1 ? source.length : source.indexOf('*/', at) + 2;
      out += ` ${source.slice(at + 2, end - 2).replace(/^\s*\*+/gm, '')}`;
      at = end;
    } else if (sign === '/' && BEFORE_REGEXP.test(source.slice(Math.max(codeFrom, at - 40), at)))
      at = endOfRegexp(source, at);
    else if (sign === "'" || sign === '"') {
      const end = endOfString(source, at);
      keepBreaks(at, end);
      at = end;
    } else if (sign === '`') template();
    else if (sign === '{' && templates.length > 0) {
      templates[templates.length - 1] += 1;
      at += 1;
    } else if (sign === '}' && templates.length > 0) {
      if (templates[templates.length - 1] === 0) {
        templates.pop();
        template();
      } else {
        templates[templates.length - 1] -= 1;
        at += 1;
      }
    } else {
      if (sign === '\n') {
        out += '\n';
        codeFrom = at;
      }
      at += 1;
    }
  }
  return out;
}

/** The comments of SQL and of a shell: lines, and what follows the sign on a line. */
const commentsOfLines = (source, sign) =>
  source
    .split('\n')
    .map((line) => {
      const at = line.search(sign);
      return at === -1 ? '' : line.slice(at).replace(sign, '');
    })
    .join('\n');

/**
 * The comments of a file, each on its own lines.
 *
 * @param {string} source
 * @param {string} path - Its ending tells the language.
 */
export function commentsOf(source, path) {
  if (path.endsWith('.sql')) return commentsOfLines(source, /(?:^|\s)--\s/);
  if (path.endsWith('.sh')) return commentsOfLines(source, /(?:^|\s)#\s/);
  return commentsOfScript(source);
}
