/** The official conformance suite in server mode, over HTTP. */
import { expect, test } from 'vitest';
import { createMcpServer } from '../create-server.js';
import { keyProxy, runConformance, SCENARIOS } from '../testing/conformance.js';
import { addConformanceFixtures } from '../testing/conformance-fixtures.js';
import { openStage } from '../testing/http-stage.js';

test('every scenario passes on the server of the product with the fixtures of the suite', async () => {
  await using proxy = await keyProxy();
  await using stage = await openStage({
    createServer: (scope) => addConformanceFixtures(createMcpServer(scope)),
    // The suite also sends requests as a page of this origin.
    allowedOrigins: [proxy.origin],
  });
  proxy.passTo(stage.url, await stage.key());
  const { code, scenarios, output } = await runConformance(proxy.url);
  expect(
    [...scenarios].filter(([, { failed }]) => failed > 0),
    output,
  ).toEqual([]);
  expect([...scenarios.keys()].toSorted()).toEqual(SCENARIOS);
  expect(code).toBe(0);
}, 180_000);
