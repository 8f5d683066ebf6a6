export { createWorker, Worker, type WorkerOptions } from './worker.js';
