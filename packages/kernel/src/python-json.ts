/** JSON as the original prints it: `json.dumps(value, ensure_ascii=False)`. */
import type { JsonValue } from './json.js';

export function pythonJson(_value: JsonValue): string {
  throw new Error('not yet');
}
