/** Serves the survey's model until it is stopped: a local provider for trying the real path without a key. */
import { chatWire } from '@boxcar/llm/testing';
import { openSurveyModel } from './model-server.js';

const port = Number(process.argv[2] ?? 8099);
const server = await openSurveyModel(chatWire, { key: null, port });
console.log(`OPENAI_COMPATIBLE_BASE_URL=${server.baseUrl}`);
