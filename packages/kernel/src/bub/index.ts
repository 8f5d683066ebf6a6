export { shareSessionGraph } from './share-session-graph.js';
export {
  FilePaths,
  fileStem,
  formatManifest,
  formatSessionGraph,
  hashedStem,
  isFilePath,
  joinSessionGraphs,
  MAX_STATUS_LENGTH,
  type ManifestTape,
  parseManifest,
  parseSessionGraph,
  type SessionLine,
} from './tape-folder.js';
export {
  lineTooLong,
  MAX_LINE_LENGTH,
  type TapeLine,
  tapeLineReader,
  tapeLineWriter,
} from './tape-jsonl.js';
