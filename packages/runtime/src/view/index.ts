export { KeptViews } from './kept-views.js';
export { type PricedProfile, TurnLoader, type ViewedTurn } from './loader.js';
export { INLINE_VIEW_BYTES, TurnView } from './turn-view.js';
export { ViewRoom } from './view-room.js';
