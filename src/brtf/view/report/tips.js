"use strict";
// Words beside the pointer: values of charts, and of pictures whose colours stand for numbers.
const tips = (() => {
  const box = document.createElement("div");
  box.id = "tip";
  box.hidden = true;
  document.body.append(box);
  const found = document.getElementById("scales");
  const { sides, palette } = found === null ? { sides: {}, palette: [] } : JSON.parse(found.textContent);
  const drawn = new Map(); // pixels of pictures, by address
  const short = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))).replace("-", "−") : "–");
  const hide = () => {
    box.hidden = true;
  };
  const say = (words, event) => {
    box.textContent = words;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - width - 6);
    const above = event.clientY - height - 12;
    box.style.left = `${Math.max(6, left)}px`;
    box.style.top = `${above < 4 ? event.clientY + 18 : above}px`;
  };

  for (const chart of document.querySelectorAll("svg[data-nearest]")) {
    const ring = document.createElementNS(chart.namespaceURI, "circle");
    ring.setAttribute("class", "here");
    ring.setAttribute("r", "4.5");
    let points = null;
    chart.addEventListener("pointermove", (event) => {
      points ??= chart
        .querySelector("metadata")
        .textContent.split("\n")
        .map((line) => {
          const [x, y] = line.split(" ", 2);
          return { x: Number(x), y: Number(y), words: line.slice(x.length + y.length + 2) };
        });
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      const [wide, high] = { x: [1, 0.02], y: [0.02, 1], xy: [1, 1] }[chart.dataset.nearest];
      let best = points[0];
      let least = Infinity;
      for (const point of points) {
        const far = wide * (point.x - at.x) ** 2 + high * (point.y - at.y) ** 2;
        if (far < least) [best, least] = [point, far];
      }
      ring.setAttribute("cx", best.x);
      ring.setAttribute("cy", best.y);
      chart.append(ring);
      say(best.words, event);
    });
    chart.addEventListener("pointerleave", () => {
      ring.remove();
      hide();
    });
  }

  const pixels = async (address) => {
    if (!drawn.has(address)) {
      const picture = new Image();
      picture.src = address;
      await picture.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
      const context = canvas.getContext("2d");
      context.drawImage(picture, 0, 0);
      if (drawn.size >= 8) drawn.clear();
      drawn.set(address, context.getImageData(0, 0, canvas.width, canvas.height));
    }
    return drawn.get(address);
  };
  // The number that a colour stands for: see pictures.py.
  const meaning = ([red, green, blue, alpha], { colours, low, high }) => {
    if (red === 128 && green === 128 && blue === 128 && alpha === 64) return NaN;
    if (colours === "light") return alpha === 0 ? NaN : Number(low) + ((red + green + blue) / 765) * (high - low);
    if (colours === "sequential") {
      const far = palette.map(([r, g, b]) => (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2);
      return Number(low) + (far.indexOf(Math.min(...far)) / (palette.length - 1)) * (high - low);
    }
    if (colours === "diverging") return ((blue > red ? -1 : 1) * alpha * Number(high)) / 255;
    return Number(low) + (alpha / 255) * (high - low);
  };
  const place = (picture, event) => {
    const { left, top, width, height } = picture.getBoundingClientRect();
    const [rows, columns] = [sides[picture.dataset.rows], sides[picture.dataset.columns]];
    const cell = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    const row = cell((event.clientY - top) / height, rows.labels.length);
    const column = cell((event.clientX - left) / width, columns.labels.length);
    const words = `${rows.name} ${rows.labels[row]}, ${columns.name} ${columns.labels[column]}`;
    return { row, column, words, n: [rows.labels.length, columns.labels.length] };
  };
  const read = async (picture, { row, column, n }) => {
    const image = await pixels(picture.getAttribute("src") ?? picture.getAttribute("href"));
    const x = Math.min(image.width - 1, Math.floor(((column + 0.5) * image.width) / n[1]));
    const y = Math.min(image.height - 1, Math.floor(((row + 0.5) * image.height) / n[0]));
    const start = 4 * (y * image.width + x);
    return meaning(image.data.slice(start, start + 4), picture.dataset);
  };

  for (const picture of document.querySelectorAll("[data-colours]:not(#viewer *)")) {
    picture.addEventListener("pointermove", async (event) => {
      const at = place(picture, event);
      say(`${at.words}: ${short(await read(picture, at))}`, event);
    });
    picture.addEventListener("pointerleave", hide);
  }
  for (const hidden of document.querySelectorAll(".scripted")) hidden.hidden = false;
  return { say, hide, short, place, read, sides, palette };
})();
