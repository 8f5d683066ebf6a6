// Ships the numbered SQL files inside the package: migrations/*.sql at the top of the repository → dist/migrations.
import { copyFileSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const from = new URL('../../../migrations/', import.meta.url);
const to = new URL('../dist/migrations/', import.meta.url);

rmSync(to, { recursive: true, force: true });
mkdirSync(to, { recursive: true });
for (const name of readdirSync(from)) {
  if (/^\d{4}_.+\.sql$/.test(name))
    copyFileSync(fileURLToPath(new URL(name, from)), fileURLToPath(new URL(name, to)));
}
