export { DEFAULT_PLATFORM, normalizePlatform, PLATFORM_NAMES, PLATFORMS, type Platform } from './platform.js';
