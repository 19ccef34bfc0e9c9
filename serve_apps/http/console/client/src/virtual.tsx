// A long list of which only the visible rows are in the page.
import {
  Virtualizer,
  elementScroll,
  measureElement,
  observeElementOffset,
  observeElementRect,
} from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

interface Rows {
  count: number;
  height: number;
  label: string;
  /** Rows have heights of their own, which are measured. */
  measured?: boolean;
  /** The box is as high as its rows, but at most this many pixels; without it the style sheet says. */
  most?: number;
  /** Headings above the rows, which stay at the top. */
  head?: ComponentChildren;
  onEnd?: () => void;
  row: (index: number) => ComponentChildren;
}

export function VirtualRows({ count, height, label, measured = false, most, head, onEnd, row }: Rows) {
  const box = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((times: number) => times + 1, 0);
  const options = {
    count,
    getScrollElement: () => box.current,
    estimateSize: () => height,
    overscan: 12,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    measureElement,
    onChange: () => redraw(undefined),
  };
  const [virtual] = useState(() => new Virtualizer<HTMLDivElement, HTMLDivElement>(options));
  virtual.setOptions(options);
  useEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  const items = virtual.getVirtualItems();
  const last = items.length ? items[items.length - 1].index : -1;
  useEffect(() => {
    if (count > 0 && last >= count - 20) onEnd?.();
  }, [last, count]);
  const fit = most === undefined ? undefined : { height: `${Math.min(most, virtual.getTotalSize() + 2)}px` };
  return (
    <div class="virtual" ref={box} tabIndex={0} role="group" aria-label={label} style={fit}>
      {head}
      <div style={{ height: `${virtual.getTotalSize()}px`, position: "relative" }}>
        {items.map((item) => (
          <div
            key={item.key}
            data-index={item.index}
            ref={(element) => {
              if (measured && element) virtual.measureElement(element);
            }}
            class="virtual-row"
            style={{ transform: `translateY(${item.start}px)`, ...(measured ? {} : { height: `${height}px` }) }}
          >
            {row(item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}
